#!/bin/sh
# Frames are rendered by software OpenGL where there is no GPU. Installs its libraries when they are missing.
[ "$(uname)" = Linux ] || exit 0
packages="libegl1 libgl1-mesa-dri"
has_egl() { ldconfig -p 2>/dev/null | grep -q 'libEGL\.so\.1'; }
has_dri() { ls /usr/lib/*/dri /usr/lib/dri /usr/lib64/dri 2>/dev/null | grep -q '_dri\.so'; }
has_egl && has_dri && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing $packages"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null && exit 0
  echo "apt-get could not install: $packages" >&2
  exit 1
fi
echo "Rendering needs the software-OpenGL libraries, which are missing. Run this once, then try again:" >&2
echo "  sudo apt-get update && sudo apt-get install -y $packages" >&2
exit 1
