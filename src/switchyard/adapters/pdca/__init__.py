"""The PDCA store in SQL, the same statements on both engines. Built by `bootstrap/pdca.py`."""
