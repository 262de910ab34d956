from .compare import compare as compare
from .kept import Kept as Kept
from .result import Comparison as Comparison
from .result import Layer as Layer
from .result import Line as Line
