"""What is known of items in words and numbers becomes vectors: the features of items."""
