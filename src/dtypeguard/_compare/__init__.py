from .compare import compare as compare
from .result import Comparison as Comparison
