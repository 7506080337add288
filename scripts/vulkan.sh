#!/bin/sh
# ManiSkill asks for Vulkan. Where no driver will do, gets Mesa's, which needs no GPU. Debian 12's own is too old, so there
# it comes from backports, by the address that the machine's own package sources have.
# Usage: vulkan.sh PYTHON, one that can import plaudit.
python=${1:-python3}
[ "$(uname)" = Linux ] || exit 0
# With NVIDIA's driver SAPIEN brings what is missing by itself.
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null && exit 0
problem=$("$python" -m plaudit.envs.maniskill.vulkan 2>&1 >/dev/null) && exit 0
if ! command -v apt-get >/dev/null; then
  echo "$problem" >&2
  exit 1
fi
oldest=24 # As in plaudit.envs.maniskill.vulkan.
. /etc/os-release
what=mesa-vulkan-drivers
list=/etc/apt/sources.list.d/plaudit-backports.list
line=
export DEBIAN_FRONTEND=noninteractive
if [ "$ID:$VERSION_CODENAME" = debian:bookworm ]; then
  what="-t bookworm-backports $what"
  [ "$(id -u)" != 0 ] || apt-get update -qq # Before the first one apt does not tell its sources.
  sources=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages')
  site=$(echo "$sources" | sed -nE 's/^(bookworm|oldstable|stable) //p' | head -1)
  # Nor may whoever is not root update, so the files themselves are asked then.
  [ -n "$site" ] || site=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    sed -nE 's/^(URIs:|deb)[^#]*[[:space:]]([a-z+]+:[^[:space:]]*\/debian\/?)([[:space:]].*)?$/\2/p' | head -1)
  if [ -z "$site" ]; then
    echo "$problem" >&2
    echo "Found no Debian package source here to get $what from." >&2
    exit 1
  fi
  echo "$sources" | grep -q '^bookworm-backports ' ||
    line="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site bookworm-backports main"
else
  version=$(apt-cache policy $what 2>/dev/null | sed -nE 's/^ *Candidate: ([0-9]+:)?([0-9]+).*/\2/p')
  if [ -n "$version" ] && [ "$version" -lt "$oldest" ]; then
    echo "$problem" >&2
    echo "This system's own $what is of version $version, and $oldest is needed: only a newer system has it." >&2
    exit 1
  fi
fi
if [ "$(id -u)" != 0 ]; then
  echo "$problem" >&2
  echo "Run this once, then try again:" >&2
  echo "  ${line:+echo '$line' | sudo tee $list && }sudo apt-get update && sudo apt-get install -y $what" >&2
  exit 1
fi
echo "Installing $what"
[ -z "$line" ] || echo "$line" >"$list"
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $what >/dev/null; }; then
  [ -z "$line" ] || rm -f "$list" # Or every later update would fail as well.
  echo "apt-get could not install: $what" >&2
  exit 1
fi
"$python" -m plaudit.envs.maniskill.vulkan >/dev/null
