"""The paper exchange: fills orders in this process at a simulated or recorded price. Built in `bootstrap/venues.py`."""
