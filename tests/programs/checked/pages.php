<?php
// SPDX-License-Identifier: MIT
// PHP: arrays, regular expressions, formats, digests, exceptions, serialisation.
while (fgets(STDIN) !== false) {
    $parts = [];
    for ($i = 1; $i <= 1200; $i++) {
        $word = sprintf("%05d-%s-%.4f", $i * 7919 % 1000, str_repeat("ab", $i % 30), sin($i));
        $parts[$word] = preg_replace_callback('/(\d+)-(a?b*)/', fn($m) => $m[2] . ($m[1] + 1), $word);
    }
    ksort($parts);
    foreach (["sha512", "sha3-256", "crc32b", "md5"] as $kind) {
        $parts[] = hash($kind, implode(",", $parts));
    }
    $parts[] = json_encode(json_decode(json_encode($parts), true));
    $parts[] = md5(serialize(unserialize(serialize($parts))));
    for ($i = 0; $i < 100; $i++) {
        try {
            if ($i % 3 == 0) throw new RuntimeException((string)$i);
            $parts[] = intdiv(1000, $i % 5);
        } catch (RuntimeException | DivisionByZeroError $e) {
            $parts[] = $e->getMessage();
        }
    }
    usort($parts, fn($a, $b) => strrev($a) <=> strrev($b));
    echo hash("sha256", implode("\n", $parts)), "\n";
}
