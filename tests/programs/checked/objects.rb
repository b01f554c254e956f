# SPDX-License-Identifier: MIT
# Ruby: threads, exceptions, big numbers, regular expressions, compression, children.
require "digest"
require "json"
require "zlib"

$stdout.sync = true
Signal.trap("TERM", "DEFAULT")
while gets
  parts = []
  parts << (1..60).inject(:*).to_s << (2**521 - 1).to_s(36)
  words = (1..800).map { |i| format("%05d-%s-%.4f", i * 7919 % 1000, "ab" * (i % 30), Math.sin(i)) }
  parts.concat(words.sort_by(&:reverse).map { |w| w.gsub(/(\d+)-(a?b*)/) { "#{$2}#{$1.to_i + 1}" } })
  parts << Zlib::Inflate.inflate(Zlib::Deflate.deflate(words.join)).length
  parts << JSON.generate(JSON.parse(JSON.generate(words.each_slice(7).to_a)))
  parts.concat(4.times.map { |t| Thread.new { (1..300).map { |i| (i * t).to_s.hash ? i * t : 0 }.sum } }.map(&:value))
  parts << (1..200).map { |i| begin raise ArgumentError, i.to_s if i % 3 == 0; i; rescue => e; e.message.to_i * 2; end }.sum
  parts << Marshal.load(Marshal.dump(words)).last
  reader, writer = IO.pipe
  child = fork { reader.close; writer.write(Digest::SHA256.hexdigest(parts.join)); writer.close; exit!(5) }
  writer.close
  parts << reader.read
  Process.wait(child)
  puts Digest::SHA256.hexdigest((parts << $?.exitstatus).join("\n"))
end
