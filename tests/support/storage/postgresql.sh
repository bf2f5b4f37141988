#!/bin/sh
# Unpack Debian's PostgreSQL into a folder. Nothing is installed or started.
set -eu
mkdir -p "$1"
cd "$1"

newest() {
    apt-cache depends postgresql | sed -n 's/^ *Depends: \(postgresql-[0-9]*\)$/\1/p'
}
test -n "$(newest)" || apt-get update --quiet -o Acquire::Retries=5
server=$(newest)
apt-get download --quiet "$server" || {
    apt-get update --quiet -o Acquire::Retries=5
    apt-get download --quiet "$server"
}
dpkg -x "$server"_*.deb .

# LLVM, with which PostgreSQL compiles queries, is large and not needed.
if ldd usr/lib/postgresql/*/bin/* | grep -q 'not found'; then
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances "$server" |
        grep -E '^(lib|zlib)' |
        grep -v -E '^lib(c6|elogind.*|llvm.*|perl.*|c-.*|newt.*|pam-.*)$' |
        sort -u > libraries.txt
    xargs apt-get download --quiet < libraries.txt
    for package in ./*.deb; do dpkg -x "$package" .; done
fi
rm -f ./*.deb
