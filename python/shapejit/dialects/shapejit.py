# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Op views of the shapejit dialect, generated from its ODS definitions."""

from ._shapejit_ops_gen import *  # noqa: F403
from ._shapejit_ops_gen import _Dialect  # noqa: F401
