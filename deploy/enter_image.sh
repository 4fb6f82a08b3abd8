#!/bin/sh
# Makes a mounted image the root of the mount namespace of this process and executes a command as
# process 1 of the container. The root is read-only except for /tmp; the only network is loopback.
#
#   unshare --mount --pid --net --ipc --uts --fork enter_image.sh ROOT FOLDER COMMAND ...
set -eu
root=$1
folder=$2
shift 2

ip link set lo up
mount --bind "$root" "$root"
cd "$root"
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs tmp
mount -t tmpfs -o nosuid,mode=755 tmpfs dev
for device in null zero full random urandom; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm
mount -t tmpfs -o nosuid,nodev,mode=1777,size=64m tmpfs dev/shm
ln -s /proc/self/fd dev/fd
mount -o remount,bind,ro "$root"
pivot_root . .
umount -l .
cd "$folder"
exec "$@"
