// SPDX-License-Identifier: MIT
import java.io.*;
import java.math.BigInteger;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import java.util.zip.*;

/** The JVM: threads, exceptions, garbage, compiled and interpreted code, digests, compression. */
class Machine {
    static int depth(int n) {
        if (n == 0) throw new IllegalStateException("deep");
        return depth(n - 1) + 1;
    }

    static String round(ExecutorService pool) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        byte[] data = new byte[40000];
        new Random(7).nextBytes(data);
        CRC32 crc = new CRC32();
        crc.update(data);
        ByteArrayOutputStream packed = new ByteArrayOutputStream();
        try (GZIPOutputStream out = new GZIPOutputStream(packed)) { out.write(data); }
        digest.update(new GZIPInputStream(new ByteArrayInputStream(packed.toByteArray())).readAllBytes());
        List<Future<String>> parts = new ArrayList<>();
        for (int t = 1; t <= 4; t++) {
            int seed = t;
            parts.add(pool.submit(() -> BigInteger.valueOf(seed + 2).pow(400).mod(BigInteger.TWO.pow(127)).toString()
                + IntStream.range(0, 3000).mapToObj(i -> Integer.toHexString(i * seed)).sorted()
                      .collect(Collectors.joining()).hashCode()));
        }
        for (Future<String> part : parts) digest.update(part.get().getBytes());
        for (int i = 0; i < 50; i++) {
            try { depth(i); } catch (IllegalStateException e) { digest.update((byte) i); }
        }
        Map<String, Double> map = new TreeMap<>();
        for (int i = 0; i < 2000; i++) map.put("k" + i * 7919 % 2003, Math.sin(i) + StrictMath.exp(i / 2000.0));
        digest.update(map.toString().getBytes());
        digest.update(Long.toString(crc.getValue()).getBytes());
        if (map.size() % 2 == 0) System.gc();
        return new BigInteger(1, digest.digest()).toString(16);
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(3);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        while (in.readLine() != null) System.out.println(round(pool));
        pool.shutdown();
    }
}
