"""Measurements of whole layers and steps on a device, at the sizes of the released model."""
