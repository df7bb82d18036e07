"""What a step of the scheduler costs on the host, without a device (``spec/engine.md`` 11.4); see ../scheduler.py."""
