"""What `server_step.py` and `scaling.py` share: servers, timing, fits, tables, drawings."""
