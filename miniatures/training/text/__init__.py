"""A generated world in words: its paragraphs and sentences, tasks over them, and the training of the
miniature T5, BART and GPT-2.
"""
