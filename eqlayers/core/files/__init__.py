"""Files that users name, and archives: read whole or refused, written whole or not at all."""
