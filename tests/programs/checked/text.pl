# SPDX-License-Identifier: MIT
# Perl: hashes, sorting, regular expressions, formats, digests, children.
use strict;
use warnings;
use Digest::SHA qw(sha256_hex);
use Storable qw(freeze thaw);
use POSIX qw(strtod fmod);

$| = 1;
while (<STDIN>) {
    my @parts;
    my %seen;
    for my $i (1 .. 1500) {
        my $word = sprintf("%s-%06.3f-%x", chr(97 + $i % 26) x ($i % 40), $i * 1.7, $i * 7919);
        $seen{$word} = $i;
        (my $other = $word) =~ s/([a-f]+)|(\d+)/defined $1 ? uc $1 : reverse $2/ge;
        push @parts, $other if $word =~ /^([a-m])\1*-\d/;
    }
    push @parts, map { "$_=$seen{$_}" } sort keys %seen;
    push @parts, join ",", sort { $a <=> $b } map { fmod($_ * 37.5, 11) } 1 .. 500;
    push @parts, pack("N n C w/a*", 1, 2, 3, "x" x 300), scalar strtod("1.25e3");
    push @parts, map { "$_=" . thaw(freeze(\%seen))->{$_} } (sort keys %seen)[0 .. 20];
    my $child = open(my $pipe, "-|") // die "fork: $!";
    if ($child == 0) { print sha256_hex(join "\n", @parts); exit 3 }
    push @parts, <$pipe>;
    close $pipe;
    print sha256_hex(join("\n", @parts, $? >> 8)), "\n";
}
