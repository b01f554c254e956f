-- SPDX-License-Identifier: MIT
CREATE TABLE numbers(n INTEGER PRIMARY KEY, square REAL, word TEXT);
WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 3000)
    INSERT INTO numbers SELECT n, n * n / 7.0, printf('%05d-%s', n * 7919 % 1009, hex(n)) FROM c;
CREATE INDEX words ON numbers(word);
UPDATE numbers SET word = upper(word) || substr(word, -3) WHERE n % 3 = 0;
DELETE FROM numbers WHERE n % 11 = 5;
SELECT count(*), sum(square), min(word), max(word), total(length(word)) FROM numbers;
SELECT group_concat(word, '') FROM (SELECT word FROM numbers WHERE word LIKE '%5%' ORDER BY word DESC LIMIT 200);
SELECT a.n, b.word FROM numbers a JOIN numbers b ON a.n = b.n + 1 ORDER BY b.word LIMIT 100;
SELECT json_group_array(n) FROM (SELECT n FROM numbers WHERE n < 200);
PRAGMA integrity_check;
PRAGMA foreign_key_check;
VACUUM;
PRAGMA integrity_check;
