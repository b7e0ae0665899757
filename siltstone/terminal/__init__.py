"""What commands and the demo share to print: tables, JSON, live pictures, progress bars."""
