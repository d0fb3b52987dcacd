"""Weather for synthetic datasets."""
