"""The audit: step a sample of rows a second time, and compare every byte of the results."""
