"""The console, the page at /: try, see and operate a deployment. docs/console.md."""
