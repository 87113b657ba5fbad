"""How weights become a bundle: fetch, convert, compile, render the repository, stamp."""
