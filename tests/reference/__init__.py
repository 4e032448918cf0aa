"""The slow and obvious NumPy forms that the package is compared with. Not shipped."""
