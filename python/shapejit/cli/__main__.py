# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``python -m shapejit.cli``"""

from __future__ import annotations

from shapejit.cli.main import main

if __name__ == "__main__":
    main()
