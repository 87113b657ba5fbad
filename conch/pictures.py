"""How many pictures one request may bring, and how large: what the gateway, the guard and façades refuse."""

MOST_PICTURES = 32  # of one text; in the gateway of one conversation, times its texts (n)
MOST_BYTES = 20 << 20  # of one picture
MOST_URL_BYTES = 64 << 20  # of the pictures of one request as data URLs, together
