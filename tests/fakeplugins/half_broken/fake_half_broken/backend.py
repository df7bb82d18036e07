"""The broken half."""

raise OSError("libhalf.so: cannot open shared object file: No such file or directory")
