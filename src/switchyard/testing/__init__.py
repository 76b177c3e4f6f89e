"""For authors of venue adapters: the contract suite (`venues`). Nothing of Switchyard imports it."""
