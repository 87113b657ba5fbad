"""Turn weights into bundles: fetch, convert, compile, render the Triton repository, stamp."""
