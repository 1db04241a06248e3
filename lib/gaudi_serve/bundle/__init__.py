"""What a site without internet must bring in: the list of everything that a run fetches from outside."""
