# SPDX-License-Identifier: MIT
"""Small programs, one on each framework that docs/patterns.md has lines for."""
