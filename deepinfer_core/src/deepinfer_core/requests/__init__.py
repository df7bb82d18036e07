"""One request from the caller's prompt to its answer: queued, followed, ended, told."""
