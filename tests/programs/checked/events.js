// SPDX-License-Identifier: MIT
// node: the event loop, the thread pool, digests, compression, children.
const crypto = require('crypto');
const zlib = require('zlib');
const { promisify } = require('util');
const { execFile } = require('child_process');
const lines = require('readline').createInterface({ input: process.stdin });

async function round() {
  const hash = crypto.createHash('sha256');
  const data = Buffer.from(Array.from({ length: 20000 }, (_, i) => (i * 7919) >> 3));
  for (const name of ['sha1', 'sha512', 'sha3-256']) hash.update(crypto.createHash(name).update(data).digest());
  const cipher = crypto.createCipheriv('aes-256-gcm', data.subarray(0, 32), data.subarray(0, 12));
  hash.update(Buffer.concat([cipher.update(data), cipher.final(), cipher.getAuthTag()]));
  hash.update(await promisify(crypto.scrypt)('secret', 'salt', 32, { N: 256 }));
  hash.update(await promisify(zlib.inflate)(await promisify(zlib.deflate)(data)));
  hash.update(JSON.stringify(Object.fromEntries([...data.subarray(0, 999)].map((v, i) => [`k${i}`, v / 3]))));
  hash.update(data.toString('latin1').replace(/[a-f]+/g, (s) => s.toUpperCase()));
  hash.update(new Float64Array(500).map((_, i) => Math.exp(Math.sin(i))).join());
  try { JSON.parse('{'); } catch (error) { hash.update(error.name); }
  hash.update((await promisify(execFile)('/bin/echo', ['child'])).stdout);
  return hash.digest('hex');
}

let last = Promise.resolve();
lines.on('line', () => { last = last.then(round).then((line) => console.log(line)); });
lines.on('close', () => last.then(() => process.exit(0)));
