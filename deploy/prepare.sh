#!/bin/sh
# Makes what compose.yaml mounts: a folder in secrets/ for each container, with what it may know.
#
#   ./prepare.sh [NAME...]     names or addresses at which sites reach the SuperLink
#
# An authority of our own signs the SuperLink's certificate. Each site gets a key, and the SuperLink
# and the ServerApp share a secret. What exists already is kept, so it can run again for more sites
# (SITES="site-1 site-2 site-3 site-4") or, without secrets/superlink/server.*, for other names.
set -eu
umask 077
cd "$(dirname "$0")"
sites=${SITES:-site-1 site-2 site-3}
days=${DAYS:-365}
mkdir -p secrets/authority secrets/superlink secrets/serverapp secrets/cli \
    state/superlink state/serverapp

new="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
cd secrets/authority
if [ ! -e ca.pem ]; then
    openssl req -x509 $new -days "$days" -subj "/CN=authority of this federation" \
        -keyout ca.key -out ca.pem 2>/dev/null
fi
if [ ! -e ../superlink/server.pem ]; then
    names=DNS:superlink,DNS:localhost,IP:127.0.0.1
    for name in "$@"; do
        case $name in
            *[!0-9.]*) names=$names,DNS:$name ;;
            *) names=$names,IP:$name ;;
        esac
    done
    printf 'subjectAltName=%s\n' "$names" > names.txt
    openssl req $new -subj "/CN=superlink" -keyout ../superlink/server.key \
        -out server.csr 2>/dev/null
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" \
        -extfile names.txt -out ../superlink/server.pem 2>/dev/null
fi
[ -e ../superlink/superexec.secret ] || openssl rand -base64 32 > ../superlink/superexec.secret
cd ../..
for site in $sites; do
    mkdir -p "secrets/$site"
    key=secrets/$site/key
    [ -e "$key" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$site" -f "$key"
    cp "$key.pub" "secrets/cli/$site.pub"
done
for who in superlink serverapp cli $sites; do
    cp secrets/authority/ca.pem "secrets/$who/ca.pem"
done
cp secrets/superlink/superexec.secret secrets/serverapp/
cat > secrets/cli/config.toml <<END
[superlink]
default = "federation"

[superlink.federation]
address = "superlink:8000"
root-certificates = "/fl/secrets/ca.pem"
END
# The containers run as you, so that they can read these files and you can read their records.
printf 'FL_USER=%s:%s\n' "$(id -u)" "$(id -g)" > .env
echo "secrets/ is complete for: $sites"
