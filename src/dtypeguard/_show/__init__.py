"""How results are shown: numbers and dtypes as text, HTML pages, and the output of a notebook's cell."""
