"""One module a group; a file of another backend's ``ops`` has the same name and the same signatures."""
