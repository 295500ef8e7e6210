"""File formats: text, tables, archives, images, audio and tunes. Files of users are not trusted."""
