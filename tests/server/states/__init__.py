"""State folders and databases of earlier versions, and what makes more of them."""
