"""`tinkex demo`: a small model learns a pirate's manner and gets its sums right, before your eyes."""
