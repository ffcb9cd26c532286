"""The audit: a sample of rows is stepped a second time, and every byte of the results compared."""
