#!/usr/bin/env bash
# Does an image do what it is for? Renders with both engines, trains and scores in it, as the user
# that calls this, or as USER_ID, and without a network: docker/check.sh threedident:cpu
set -euo pipefail
image=${1:?which image? docker/check.sh IMAGE}
user=${USER_ID:-$(id -u)}
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
mkdir "$data/home"
[ "$user" = "$(id -u)" ] || chown -R "$user" "$data"

toolkit() {
	echo "+ 3dident $*"
	docker run --rm --init --network none --shm-size 2g --user "$user:$user" \
		--volume "$data:/data" --volume "$data/home:/home/threedident" "$image" "$@"
}

small=(--engine direct --quality draft --resolution 32)
toolkit doctor
toolkit render --n 4 --quality draft --resolution 64 --out blender
toolkit verify blender
toolkit render "${small[@]}" --n 256 --out train
toolkit render "${small[@]}" --n 256 --split test --out test
toolkit train demo --data train --test test --out run --set training.steps=4
toolkit evaluate reference:encoder=run/encoder.pt --data test --out scores --metrics linear_r2
toolkit export run/encoder.pt --out encoder.onnx --resolution 32

others=$(find "$data" ! -user "$user")
[ -z "$others" ] || { echo "not of user $user: $others"; exit 1; }
echo "$image: all of it works, and every file belongs to user $user"
