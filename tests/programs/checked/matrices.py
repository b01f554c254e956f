# SPDX-License-Identifier: MIT
"""NumPy: linear algebra, transforms, sorting, text. One line of digest for each line of input."""

import hashlib
import sys

import numpy

for _ in sys.stdin:
    random = numpy.random.default_rng(7)
    a = random.standard_normal((96, 96))
    digest = hashlib.sha256()
    for result in (
        a @ a.T, numpy.linalg.svd(a)[1], numpy.linalg.solve(a, a[0]), numpy.linalg.eigvals(a),
        numpy.fft.fft(a), numpy.sort(a, axis=None), numpy.exp(a) + numpy.sin(a), numpy.cumsum(a),
        (a * 1000).astype(numpy.int16), numpy.packbits(a > 0), a.astype(numpy.float32).sum(axis=0),
    ):
        digest.update(result.tobytes())
    digest.update(repr(a[:4].tolist()).encode())
    print(digest.hexdigest(), flush=True)
