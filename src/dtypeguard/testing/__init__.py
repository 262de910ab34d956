"""Property tests of dtypes: hypothesis strategies from annotations, and checks of a whole model."""

from ._inputs import inputs_for as inputs_for
from ._inputs import tensors as tensors
from ._violations import Breach as Breach
from ._violations import violations_of as violations_of
