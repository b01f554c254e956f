#!/bin/bash
# SPDX-License-Identifier: MIT
# SQLite: a database is made, queried, and checked by its own integrity check.
sql=$(dirname "$0")/tables.sql
while read -r _; do
    sqlite3 :memory: ".read $sql" 2>&1 | sha256sum
done
