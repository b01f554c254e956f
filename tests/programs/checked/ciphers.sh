#!/bin/bash
# SPDX-License-Identifier: MIT
# OpenSSL: every digest and cipher that the program has, signatures made and verified.
key=$(mktemp)
trap 'rm -f "$key"' EXIT
openssl genpkey -algorithm ed25519 -out "$key" 2>/dev/null
while read -r _; do
    {
        for digest in sha1 sha256 sha512 sha3-384 blake2b512 md5; do
            seq 2000 | openssl dgst "-$digest"
        done
        for cipher in aes-128-cbc aes-256-ctr chacha20 camellia-192-cbc des-ede3-cbc; do
            seq 2000 | openssl enc "-$cipher" -K 00112233445566778899aabbccddeeff0011223344556677 \
                -iv 000102030405060708090a0b0c0d0e0f 2>/dev/null |
                openssl dgst -sha256
        done
        seq 99 >"$key.text"
        openssl pkeyutl -sign -rawin -inkey "$key" -in "$key.text" -out "$key.signed"
        openssl pkeyutl -verify -rawin -inkey "$key" -in "$key.text" -sigfile "$key.signed"
        openssl prime 170141183460469231731687303715884105727
        rm -f "$key.text" "$key.signed"
    } | sha256sum
done
