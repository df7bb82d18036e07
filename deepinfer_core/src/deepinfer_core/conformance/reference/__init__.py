"""Plain, slow references in fp64 or integers on the host, independent of every backend."""
