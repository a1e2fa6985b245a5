"""Who is let in: keys, issuers of tokens, what is switched off, who has signed in to the console."""
