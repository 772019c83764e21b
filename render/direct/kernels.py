"""The direct engine's kernels: what runs at every pixel, on CPU and GPU, for NVIDIA Warp."""

# No `from __future__ import annotations` here: Warp reads the annotations of its functions.

import warp as wp

from threedident.render.direct import integrand

RUBBER = wp.constant(0)
METAL = wp.constant(1)
POINTS = wp.constant(4096)  # of the table of sample points, a power of two
PAIRS = wp.constant(5)  # of dimensions: the pixel filter, three lights, the metal's narrow lobe
FILTER_STEPS = wp.constant(1024)  # of the table of the pixel filter's quantiles
_OFFSET = wp.constant(1.0e-3)  # m, by which shadow rays start off the surface


@wp.struct
class Shot:
    """A scene, as kernels need it."""

    location: wp.vec3
    rotation: wp.mat33
    scale: float
    ground: float
    inverse: wp.mat33  # from directions of the scene to the object's own
    spot: wp.vec3
    aim: wp.vec3  # the spotlight's direction
    object_color: wp.vec3
    spot_color: wp.vec3
    ground_color: wp.vec3
    centre: wp.vec3  # of a sphere around the object
    radius: float


@wp.struct
class Lamps:
    """The lights' constants."""

    sun: float
    sun_radius: float
    area: float
    area_height: float
    area_side: float
    spot: float
    spot_radius: float
    spot_cos: float
    spot_blend: float


@wp.struct
class View:
    """A pixel grid and the filter over it."""

    side: int
    zoom: float  # half the field's width at distance 1
    width: float  # filter offsets, in units of the image's pixels, to those of the grid
    camera: float  # the camera stands at (camera, 0, camera)


@wp.struct
class Samples:
    """Tables that sampling reads."""

    points: wp.array(dtype=wp.vec2ui, ndim=2)  # (PAIRS, POINTS), of 32 bits
    filter: wp.array(dtype=float)  # quantiles of the pixel filter, FILTER_STEPS + 1


@wp.struct
class Part:
    """One of several objects that are one mesh, which is in the scene's coordinates."""

    location: wp.vec3
    rotation: wp.mat33
    inverse: wp.mat33  # from directions of the scene to the object's own
    centre: wp.vec3  # of the bounding box, and its sides: for the metal's tangents
    sides: wp.vec3
    color: wp.vec3
    material: int
    middle: wp.vec3  # of a sphere around the object, in the scene
    radius: float


@wp.struct
class Body:
    """The object: its mesh, what is needed for its normals, and its material."""

    mesh: wp.uint64
    material: int
    centre: wp.vec3  # of the bounding box, and its sides: for the metal's tangents
    sides: wp.vec3
    parts: wp.array(dtype=Part)  # empty where there is one object
    part_of: wp.array(dtype=int)  # of each triangle


@wp.kernel(enable_backward=False)
def points_kernel(seed: wp.uint32, out: wp.array(dtype=wp.vec2ui, ndim=2)):
    """Tabulate sample points: (PAIRS, POINTS)."""
    pair, index = wp.tid()
    out[pair, index] = integrand.sample_bits(index, pair, seed)


@wp.func
def sample_point(samples: Samples, index: int, pair: int, own: wp.uint32) -> wp.vec2:
    """Point `index` of a pixel's sequence in [0, 1)^2; each `pair` is one of its own.

    The table's points are shifted digit by digit by the pixel's own number, which leaves every
    stretch of them as even as it was (a random digital shift).
    """
    shift = integrand.mix_bits(own + wp.uint32(pair + 1) * integrand.GOLDEN)
    if index >= POINTS:  # the table over again, shifted anew
        shift = integrand.mix_bits(shift ^ wp.uint32(index / POINTS))
    bits = samples.points[pair, index & (POINTS - 1)]
    return integrand.unit_square(
        bits[0] ^ shift, bits[1] ^ ((shift >> wp.uint32(16)) | (shift << wp.uint32(16)))
    )


@wp.func
def filter_offset(samples: Samples, u: float) -> float:
    """An offset in pixels, distributed as the pixel filter, from a uniform number."""
    x = u * float(FILTER_STEPS)
    i = wp.min(int(x), FILTER_STEPS - 1)
    t = x - float(i)
    return (1.0 - t) * samples.filter[i] + t * samples.filter[i + 1]


@wp.func
def camera_ray(view: View, row: float, column: float) -> wp.vec3:
    """The direction, of length >= 1, through a point of the image (rows, columns)."""
    x = (2.0 * column / float(view.side) - 1.0) * view.zoom
    y = (1.0 - 2.0 * row / float(view.side)) * view.zoom
    root = 0.70710678
    return wp.vec3(-root - y * root, x, -root + y * root)


@wp.func
def to_object(shot: Shot, p: wp.vec3) -> wp.vec3:
    """A point of the scene in the object's own coordinates."""
    return shot.inverse * (p - shot.location)


@wp.func
def blocked(body: Body, shot: Shot, p: wp.vec3, towards: wp.vec3, reach: float) -> bool:
    """Whether the object stands within `reach` (in lengths of `towards`) of a point."""
    return wp.mesh_query_ray_anyhit(body.mesh, to_object(shot, p), shot.inverse * towards, reach)


@wp.func
def sun_light(lamps: Lamps, u: wp.vec2) -> wp.vec3:
    """The direction to a point of the sun's disk, not normalised (its distance is > 1)."""
    d = integrand.disk_point(u)
    return wp.vec3(lamps.sun_radius * d[0], lamps.sun_radius * d[1], 1.0)


@wp.func
def area_light(lamps: Lamps, p: wp.vec3, u: wp.vec2) -> wp.vec3:
    """The way from p to a point of the area light."""
    x = (u[0] - 0.5) * lamps.area_side
    y = (u[1] - 0.5) * lamps.area_side
    return wp.vec3(x, y, lamps.area_height) - p


@wp.func
def area_strength(lamps: Lamps, way: wp.vec3) -> float:
    """The light's irradiance, on a surface that faces it, at the end of a way to it."""
    squared = wp.dot(way, way)
    return lamps.area / integrand.PI * wp.max(way[2], 0.0) / (squared * wp.sqrt(squared))


@wp.func
def spot_light(lamps: Lamps, shot: Shot, p: wp.vec3, u: wp.vec2) -> wp.vec3:
    """The way from p to a point of the spotlight, a disk that faces p."""
    axis = wp.normalize(shot.spot - p)
    side = wp.vec3(0.0, 0.0, 1.0)
    if wp.abs(axis[2]) > 0.9:
        side = wp.vec3(1.0, 0.0, 0.0)
    first = wp.normalize(wp.cross(axis, side))
    second = wp.cross(axis, first)
    d = lamps.spot_radius * integrand.disk_point(u)
    return shot.spot + d[0] * first + d[1] * second - p


@wp.func
def spot_share(lamps: Lamps, shot: Shot, way: wp.vec3) -> float:
    """The share of the spotlight's intensity that leaves towards the beginning of a way to it."""
    cosine = -wp.dot(way, shot.aim) / wp.length(way)
    return integrand.spot_falloff(cosine, lamps.spot_cos, lamps.spot_blend)


@wp.func
def spot_strength(lamps: Lamps, shot: Shot, way: wp.vec3) -> float:
    """The light's irradiance, on a surface that faces it, at the end of a way to it."""
    falloff = spot_share(lamps, shot, way)
    return lamps.spot / (4.0 * integrand.PI) / wp.dot(way, way) * falloff


@wp.struct
class Point:
    """A point of a surface, seen by the camera."""

    p: wp.vec3
    n: wp.vec3  # shading normal
    face: wp.vec3  # geometric normal
    v: wp.vec3  # to the camera
    tangent: wp.vec3
    color: wp.vec3
    mix: wp.vec2  # `rubber_mix`
    material: int


@wp.func
def in_frame(point: Point, w: wp.vec3) -> wp.vec3:
    """A direction in the frame of tangent, bitangent and normal."""
    across = wp.normalize(wp.cross(point.n, point.tangent))
    along = wp.cross(across, point.n)
    return wp.vec3(wp.dot(w, along), wp.dot(w, across), wp.dot(w, point.n))


@wp.func
def out_of_frame(point: Point, w: wp.vec3) -> wp.vec3:
    """A direction in the scene, from the frame of tangent, bitangent and normal."""
    across = wp.normalize(wp.cross(point.n, point.tangent))
    along = wp.cross(across, point.n)
    return w[0] * along + w[1] * across + w[2] * point.n


# The metal's narrow lobe: roughness 0.1, anisotropy 0.25, as Cycles turns them into alphas.
_NARROW_X = wp.constant(0.01 * (1.0 - 0.25))
_NARROW_Y = wp.constant(0.01 / (1.0 - 0.25))
_WIDE = wp.constant(0.447 * 0.447)


@wp.func
def scatter(point: Point, l: wp.vec3) -> wp.vec3:
    """The share of light from l that the surface sends to the camera: BRDF times the cosine."""
    if wp.dot(point.face, l) <= 0.0:
        return wp.vec3(0.0)
    if point.material == RUBBER:
        terms = integrand.rubber_terms(point.n, point.v, l, point.mix)
        return terms[0] * point.color + wp.vec3(terms[1], terms[1], terms[1])
    v = in_frame(point, point.v)
    w = in_frame(point, l)
    return (
        0.4 * integrand.ggx(v, w, _WIDE, _WIDE) + 0.6 * integrand.ggx(v, w, _NARROW_X, _NARROW_Y)
    ) * point.color


@wp.func
def shadow_start(point: Point) -> wp.vec3:
    """The point at which shadow rays begin."""
    return point.p + _OFFSET * point.face


@wp.func
def share(point: Point, l: wp.vec3, light_pdf: float) -> float:
    """The weight of a light's sample beside one of the metal's narrow lobe (balance heuristic)."""
    if point.material == RUBBER:
        return 1.0
    lobe = integrand.ggx_visible_pdf(
        in_frame(point, point.v), in_frame(point, l), _NARROW_X, _NARROW_Y
    )
    return light_pdf / (light_pdf + lobe)


@wp.func
def sun_pdf(lamps: Lamps, l: wp.vec3) -> float:
    """The density, per solid angle, with which the sun's disk is sampled at l; 0 beside it."""
    if l[2] <= integrand.TINY:
        return 0.0
    x = l[0] / l[2]
    y = l[1] / l[2]
    if x * x + y * y > lamps.sun_radius * lamps.sun_radius:
        return 0.0
    return 1.0 / (integrand.PI * lamps.sun_radius * lamps.sun_radius * l[2] * l[2] * l[2])


@wp.func
def area_pdf(lamps: Lamps, p: wp.vec3, l: wp.vec3) -> float:
    """The density, per solid angle, with which the area light is sampled at l; 0 beside it."""
    if l[2] <= integrand.TINY or p[2] >= lamps.area_height:
        return 0.0
    t = (lamps.area_height - p[2]) / l[2]
    half = 0.5 * lamps.area_side
    if wp.abs(p[0] + t * l[0]) > half or wp.abs(p[1] + t * l[1]) > half:
        return 0.0
    return t * t / (lamps.area_side * lamps.area_side * l[2])


@wp.func
def spot_pdf(lamps: Lamps, shot: Shot, p: wp.vec3, l: wp.vec3) -> float:
    """The density, per solid angle, with which the spotlight's disk is sampled at l."""
    way = shot.spot - p
    distance = wp.length(way)
    cosine = wp.dot(way, l) / distance
    if cosine <= integrand.TINY:
        return 0.0
    t = distance / cosine
    miss2 = t * t - distance * distance
    if miss2 > lamps.spot_radius * lamps.spot_radius:
        return 0.0
    return t * t / (cosine * integrand.PI * lamps.spot_radius * lamps.spot_radius)


@wp.func
def lit(
    body: Body,
    lamps: Lamps,
    shot: Shot,
    point: Point,
    samples: Samples,
    index: int,
    own: wp.uint32,
) -> wp.vec3:
    """One sample of the light that a point sends to the camera: each light once."""
    start = shadow_start(point)
    total = wp.vec3(0.0)

    way = sun_light(lamps, sample_point(samples, index, 1, own))
    l = wp.normalize(way)
    f = scatter(point, l)
    if wp.max(f) > 0.0 and not blocked(body, shot, start, l, 1.0e4):
        total += lamps.sun * share(point, l, sun_pdf(lamps, l)) * f

    way = area_light(lamps, point.p, sample_point(samples, index, 2, own))
    l = wp.normalize(way)
    f = scatter(point, l)
    strength = area_strength(lamps, way)
    if strength * wp.max(f) > 0.0 and not blocked(body, shot, start, way, 1.0):
        total += strength * share(point, l, area_pdf(lamps, point.p, l)) * f

    way = spot_light(lamps, shot, point.p, sample_point(samples, index, 3, own))
    l = wp.normalize(way)
    f = wp.cw_mul(shot.spot_color, scatter(point, l))
    strength = spot_strength(lamps, shot, way)
    if strength * wp.max(f) > 0.0 and not blocked(body, shot, start, way, 1.0):
        total += strength * share(point, l, spot_pdf(lamps, shot, point.p, l)) * f

    if point.material != RUBBER:
        total += reflected(body, lamps, shot, point, sample_point(samples, index, 4, own))
    return total


@wp.func
def reflected(body: Body, lamps: Lamps, shot: Shot, point: Point, u: wp.vec2) -> wp.vec3:
    """The metal's narrow lobe, sampled: what it finds of the lights, by the balance heuristic."""
    v = in_frame(point, point.v)
    if v[2] <= integrand.TINY:
        return wp.vec3(0.0)
    h = integrand.ggx_visible_normal(v, _NARROW_X, _NARROW_Y, u)
    w = 2.0 * wp.dot(v, h) * h - v
    l = out_of_frame(point, w)
    f = scatter(point, l)
    lobe = integrand.ggx_visible_pdf(v, w, _NARROW_X, _NARROW_Y)
    if wp.max(f) <= 0.0 or lobe <= 0.0:
        return wp.vec3(0.0)
    start = shadow_start(point)
    total = wp.vec3(0.0)

    pdf = sun_pdf(lamps, l)
    if pdf > 0.0 and not blocked(body, shot, start, l, 1.0e4):
        total += lamps.sun * pdf / (pdf + lobe) * f

    pdf = area_pdf(lamps, point.p, l)
    if pdf > 0.0:
        way = l * ((lamps.area_height - point.p[2]) / l[2])
        if not blocked(body, shot, start, way, 1.0):
            total += area_strength(lamps, way) * pdf / (pdf + lobe) * f

    pdf = spot_pdf(lamps, shot, point.p, l)
    if pdf > 0.0:
        aim = shot.spot - point.p
        way = l * (wp.dot(aim, aim) / wp.dot(aim, l))
        if not blocked(body, shot, start, way, 1.0):
            strength = spot_strength(lamps, shot, way)
            total += strength * pdf / (pdf + lobe) * wp.cw_mul(shot.spot_color, f)
    return total


@wp.func
def pixel_seed(seed: wp.uint32, side: int, i: int, j: int, layer: int) -> wp.uint32:
    """A seed for a pixel's samples."""
    return integrand.mix_bits(
        integrand.mix_bits(seed)
        ^ integrand.mix_bits(wp.uint32(i * side + j) * wp.uint32(2) + wp.uint32(layer))
    )


@wp.func
def sample_ray(view: View, samples: Samples, i: int, j: int, index: int, own: wp.uint32) -> wp.vec3:
    """The camera ray of a pixel's sample."""
    u = sample_point(samples, index, 0, own)
    row = float(i) + 0.5 + view.width * filter_offset(samples, u[1])
    column = float(j) + 0.5 + view.width * filter_offset(samples, u[0])
    return camera_ray(view, row, column)


# --- The ground: each light's effect without the object, times the share of it that is seen ---

SUN = wp.constant(0)
AREA = wp.constant(1)
SPOT = wp.constant(2)
_STEADY = wp.constant(wp.uint32(0x5BD1E995))  # the points that all pixels share


@wp.func
def ground_point(view: View, shot: Shot, row: float, column: float) -> wp.vec3:
    """The point of the ground that is seen at a point of the image (rows, columns)."""
    d = camera_ray(view, row, column)
    scale = (view.camera - shot.ground) / -d[2]
    return wp.vec3(view.camera + d[0] * scale, d[1] * scale, shot.ground)


@wp.func
def way_to(light: int, lamps: Lamps, shot: Shot, p: wp.vec3, u: wp.vec2) -> wp.vec3:
    """The way from p to a point of a light; for the sun, to above the object."""
    if light == SUN:
        return sun_light(lamps, u) * wp.max(shot.centre[2] + shot.radius - p[2], 0.0)
    if light == AREA:
        return area_light(lamps, p, u)
    return spot_light(lamps, shot, p, u)


@wp.func
def weight_of(light: int, way: wp.vec3) -> float:
    """The share of a light's point in what the ground sends on, but for the spot's falloff."""
    if light == SUN:
        return 1.0
    squared = wp.dot(way, way)
    weight = way[2] / (squared * wp.sqrt(squared))
    if light == AREA:
        weight *= way[2] / wp.sqrt(squared)
    return wp.max(weight, 0.0)


@wp.func
def comes_near(p: wp.vec3, way: wp.vec3, squared: float, centre: wp.vec3, reach: float) -> bool:
    """Whether a way from p, of that squared length, comes within reach of a point."""
    c = centre - p
    t = wp.clamp(wp.dot(c, way) / squared, 0.0, 1.0)
    return wp.length(c - t * way) <= reach


@wp.func
def may_be_shaded(
    body: Body, light: int, lamps: Lamps, shot: Shot, view: View, i: int, j: int
) -> bool:
    """Whether an object's sphere comes near the ways from a pixel's ground to a light."""
    row = float(i) + 0.5
    column = float(j) + 0.5
    p = ground_point(view, shot, row, column)
    far = 1.5 * view.width
    margin = wp.max(
        wp.length(ground_point(view, shot, row - far, column - far) - p),
        wp.length(ground_point(view, shot, row - far, column + far) - p),
    )
    way = way_to(light, lamps, shot, p, wp.vec2(0.5, 0.5))
    width = lamps.spot_radius
    if light == SUN:
        width = lamps.sun_radius * way[2]
    if light == AREA:
        width = 0.70711 * lamps.area_side
    squared = wp.dot(way, way)
    if squared <= 0.0:
        return False
    if body.parts.shape[0] == 0:
        return comes_near(p, way, squared, shot.centre, shot.radius + width + margin)
    near = bool(False)
    for k in range(body.parts.shape[0]):
        part = body.parts[k]
        if comes_near(p, way, squared, part.middle, part.radius + width + margin):
            near = True
    return near


@wp.func
def seen_share(
    light: int,
    body: Body,
    lamps: Lamps,
    shot: Shot,
    view: View,
    samples: Samples,
    i: int,
    j: int,
    first: int,
    count: int,
    own: wp.uint32,
) -> wp.vec2:
    """The share of a light that a pixel's ground sees past the object, and of its points."""
    total = float(0.0)
    seen = float(0.0)
    plain = float(0.0)
    points = float(0.0)
    for s in range(first, first + count):
        u = sample_point(samples, s, 0, own)
        row = float(i) + 0.5 + view.width * filter_offset(samples, u[1])
        column = float(j) + 0.5 + view.width * filter_offset(samples, u[0])
        p = ground_point(view, shot, row, column)
        way = way_to(light, lamps, shot, p, sample_point(samples, s, 1 + light, own))
        weight = weight_of(light, way)
        share = float(1.0)
        if light == SPOT:
            share = spot_share(lamps, shot, way)
        plain += weight
        total += share * weight
        start = wp.vec3(p[0], p[1], p[2] + _OFFSET)
        if not blocked(body, shot, start, way, 1.0):
            points += weight
            seen += share * weight
    if plain <= 0.0:
        return wp.vec2(1.0, 1.0)
    if total <= 0.0:
        return wp.vec2(points / plain, points / plain)
    return wp.vec2(seen / total, points / plain)


@wp.func
def mean_spot_share(
    lamps: Lamps, shot: Shot, view: View, samples: Samples, i: int, j: int, count: int
) -> wp.vec2:
    """The mean share of the spotlight's intensity, and how far points of it differ."""
    p = ground_point(view, shot, float(i) + 0.5, float(j) + 0.5)
    total = float(0.0)
    sum = float(0.0)
    low = float(1.0)
    high = float(0.0)
    for s in range(count):
        way = spot_light(lamps, shot, p, sample_point(samples, s, 1 + SPOT, _STEADY))
        weight = weight_of(SPOT, way)
        share = spot_share(lamps, shot, way)
        total += weight
        sum += weight * share
        low = wp.min(low, share)
        high = wp.max(high, share)
    return wp.vec2(sum / total, high - low)


@wp.func
def place_in_tile(i: int, j: int) -> int:
    """The number of a grid's pixel in its tile, such that close ones have close numbers."""
    return (j & 1) | ((i & 1) << 1) | ((j & 2) << 1) | ((i & 2) << 2)


@wp.kernel(enable_backward=False)
def look_at_ground_kernel(
    body: Body,
    lamps: Lamps,
    view: View,
    samples: Samples,
    shots: wp.array(dtype=Shot),
    count: int,
    most: int,
    seed: wp.uint32,
    out: wp.array(dtype=wp.vec4, ndim=3),
    unsure: wp.array(dtype=wp.int8, ndim=3),
):
    """The shares that the ground sees of the three lights, and of the spot's cone: (B, n, n).

    Args:
        count, most: the samples here, and those of a pixel that is looked at again.
        out: sun, area light, spotlight, and the spotlight's mean intensity.
        unsure: a bit for each of the four where samples differ.
    """
    b, i, j = wp.tid()
    shot = shots[b]
    own = integrand.mix_bits(seed)
    share = wp.vec4(1.0)
    bits = 0
    first = place_in_tile(i, j) * most
    for light in range(3):
        if may_be_shaded(body, light, lamps, shot, view, i, j):
            seen = seen_share(light, body, lamps, shot, view, samples, i, j, first, count, own)
            share[light] = seen[0]
            if seen[1] > 0.0 and seen[1] < 0.99999:
                bits |= 1 << light
    cone = mean_spot_share(lamps, shot, view, samples, i, j, count)
    share[3] = cone[0]
    if cone[1] > 0.0:
        bits |= 8
    out[b, i, j] = share
    unsure[b, i, j] = wp.int8(bits)


@wp.kernel(enable_backward=False)
def ground_kernel(
    body: Body,
    lamps: Lamps,
    view: View,
    samples: Samples,
    shots: wp.array(dtype=Shot),
    unsure: wp.array(dtype=wp.int8, ndim=3),
    most: int,
    seed: wp.uint32,
    shares: wp.array(dtype=wp.vec4, ndim=3),
):
    """Look again, with more samples, where the first look and its neighbours are unsure."""
    b, i, j = wp.tid()
    bits = 0
    for di in range(-1, 2):
        for dj in range(-1, 2):
            row = wp.clamp(i + di, 0, view.side - 1)
            column = wp.clamp(j + dj, 0, view.side - 1)
            bits |= int(unsure[b, row, column])
    if bits == 0:
        return
    shot = shots[b]
    own = integrand.mix_bits(seed)
    first = place_in_tile(i, j) * most
    share = shares[b, i, j]
    for light in range(3):
        if (bits & (1 << light)) != 0:
            share[light] = seen_share(
                light, body, lamps, shot, view, samples, i, j, first, most, own
            )[0]
    if (bits & 8) != 0:
        share[3] = mean_spot_share(lamps, shot, view, samples, i, j, 64)[0]
    shares[b, i, j] = share


@wp.kernel(enable_backward=False)
def smooth_kernel(
    shares: wp.array(dtype=wp.vec4, ndim=3), count: int, out: wp.array(dtype=wp.vec4, ndim=3)
):
    """Smooth what is seen of the lights by parabolas through 5 x 5 pixels (Savitzky-Golay).

    No share changes by more than the noise that `count` samples leave in it: an edge of a
    shadow that is too sharp for a parabola stays.
    """
    b, i, j = wp.tid()
    total = wp.vec4(0.0)
    mean = wp.vec4(0.0)
    side = shares.shape[1]
    for di in range(-2, 3):
        for dj in range(-2, 3):
            row = wp.clamp(i + di, 0, side - 1)
            column = wp.clamp(j + dj, 0, side - 1)
            weight = (17.0 - 5.0 * float(di * di)) * (17.0 - 5.0 * float(dj * dj)) / 1225.0
            share = shares[b, row, column]
            total += weight * share
            mean += share / 25.0
    found = shares[b, i, j]
    for light in range(3):
        spread = wp.sqrt(wp.max(mean[light] * (1.0 - mean[light]), 0.0))
        points = float(count)
        if light == SPOT:  # only those in its cone count
            points = wp.max(points * found[3], 1.0)
        noise = 1.5 * spread * wp.pow(points, -0.75)
        total[light] = wp.clamp(total[light], found[light] - noise, found[light] + noise)
    total[3] = found[3]
    out[b, i, j] = total


@wp.kernel(enable_backward=False)
def light_kernel(
    lamps: Lamps,
    view: View,
    samples: Samples,
    shots: wp.array(dtype=Shot),
    light: int,
    count: int,
    out: wp.array(dtype=wp.vec4, ndim=3),
):
    """A light on the bare ground, on a coarse grid: the two terms of rubber, (B, n, n)."""
    b, i, j = wp.tid()
    shot = shots[b]
    p = ground_point(view, shot, float(i) + 0.5, float(j) + 0.5)
    v = wp.normalize(wp.vec3(view.camera, 0.0, view.camera) - p)
    up = wp.vec3(0.0, 0.0, 1.0)
    mix = integrand.rubber_mix(v[2], False)
    total = wp.vec2(0.0)
    for s in range(count):
        u = sample_point(samples, s, 1 + light, _STEADY)
        way = sun_light(lamps, u)
        strength = lamps.sun
        if light == AREA:
            way = area_light(lamps, p, u)
            strength = area_strength(lamps, way)
        if light == SPOT:
            way = spot_light(lamps, shot, p, u)
            strength = lamps.spot / (4.0 * integrand.PI) / wp.dot(way, way)
        total += strength * integrand.rubber_terms(up, v, wp.normalize(way), mix)
    out[b, i, j] = wp.vec4(total[0], total[1], 0.0, 0.0) / float(count)


@wp.kernel(enable_backward=False)
def compose_ground_kernel(
    shots: wp.array(dtype=Shot),
    first: wp.array(dtype=int),
    weights: wp.array(dtype=float, ndim=2),
    rows: wp.array(dtype=wp.vec4, ndim=3),
    spot_first: wp.array(dtype=int),
    spot_weights: wp.array(dtype=float, ndim=2),
    spot_rows: wp.array(dtype=wp.vec4, ndim=3),
    fixed: wp.array(dtype=wp.vec4, ndim=2),
    out: wp.array(dtype=wp.vec3, ndim=3),
):
    """The ground's light at full resolution, as if the object could not be seen: (B, H, W).

    Args:
        rows: the shares that are seen, (B, H, n): columns are brought up here.
        spot_rows: the two terms of the spotlight, (B, H, m), likewise.
        fixed: the two terms of the sun and of the area light, (H, W).
    """
    b, i, j = wp.tid()
    share = wp.vec4(0.0)
    for k in range(weights.shape[1]):
        share += weights[j, k] * rows[b, i, first[j] + k]
    spot = wp.vec4(0.0)
    for k in range(spot_weights.shape[1]):
        spot += spot_weights[j, k] * spot_rows[b, i, spot_first[j] + k]
    for light in range(4):
        share[light] = wp.clamp(share[light], 0.0, 1.0)
    shot = shots[b]
    base = fixed[i, j]
    still = wp.vec3(1.0) * (share[0] * base[1] + share[1] * base[3])
    still += (share[0] * base[0] + share[1] * base[2]) * shot.ground_color
    bright = spot[0] * shot.ground_color + wp.vec3(1.0) * spot[1]
    out[b, i, j] = still + share[2] * share[3] * wp.cw_mul(shot.spot_color, bright)


@wp.func
def first_hit(body: Body, shot: Shot, eye: wp.vec3, d: wp.vec3) -> wp.MeshQueryRay:
    """The point at which a camera ray meets an object, above the ground."""
    reach = float(1.0e4)
    if d[2] < -1.0e-4:
        reach = (shot.ground - eye[2]) / d[2]
    return wp.mesh_query_ray(body.mesh, to_object(shot, eye), shot.inverse * d, reach)


@wp.func
def near_sphere(view: View, centre: wp.vec3, radius: float, i: int, j: int) -> bool:
    """Whether a ray of a pixel may meet a sphere."""
    d = camera_ray(view, float(i) + 0.5, float(j) + 0.5)
    c = centre - wp.vec3(view.camera, 0.0, view.camera)
    t = wp.dot(c, d) / wp.dot(d, d)
    # Two pixels' width: the filter reaches 1.5 out, and the neighbours look here.
    margin = 4.0 * view.width * view.zoom / float(view.side) * (wp.abs(t) + radius)
    return wp.length(c - t * d) <= radius + margin


@wp.func
def near_object(body: Body, view: View, shot: Shot, i: int, j: int) -> bool:
    """Whether a ray of a pixel may meet an object's sphere."""
    if body.parts.shape[0] == 0:
        return near_sphere(view, shot.centre, shot.radius, i, j)
    near = bool(False)
    for k in range(body.parts.shape[0]):
        part = body.parts[k]
        if near_sphere(view, part.middle, part.radius, i, j):
            near = True
    return near


@wp.func
def object_sample(
    body: Body,
    lamps: Lamps,
    view: View,
    samples: Samples,
    normals: wp.array(dtype=wp.vec3),
    shot: Shot,
    i: int,
    j: int,
    index: int,
    own: wp.uint32,
) -> wp.vec4:
    """One sample of a pixel: the object's light, and whether it is met."""
    eye = wp.vec3(view.camera, 0.0, view.camera)
    d = sample_ray(view, samples, i, j, index, own)
    hit = first_hit(body, shot, eye, d)
    if not hit.result:
        return wp.vec4(0.0)
    point = Point()
    point.p = eye + d * hit.t
    point.v = -wp.normalize(d)
    k = hit.face * 3
    n = hit.u * normals[k] + hit.v * normals[k + 1] + (1.0 - hit.u - hit.v) * normals[k + 2]
    point.n = wp.normalize(shot.rotation * n)
    point.face = wp.normalize(shot.rotation * hit.normal)
    back = wp.dot(point.face, point.v) < 0.0
    if back:
        point.face = -point.face
        point.n = -point.n
    point.mix = integrand.rubber_mix(wp.dot(point.n, point.v), back)
    if body.parts.shape[0] == 0:
        local = to_object(shot, point.p) - body.centre
        point.tangent = shot.rotation * wp.vec3(
            -local[1] / body.sides[1], local[0] / body.sides[0], 0.0
        )
        point.color = shot.object_color
        point.material = body.material
    else:
        part = body.parts[body.part_of[hit.face]]
        inside = part.inverse * (point.p - part.location) - part.centre
        point.tangent = part.rotation * wp.vec3(
            -inside[1] / part.sides[1], inside[0] / part.sides[0], 0.0
        )
        point.color = part.color
        point.material = part.material
    light = lit(body, lamps, shot, point, samples, index, own)
    return wp.vec4(light[0], light[1], light[2], 1.0)


@wp.kernel(enable_backward=False)
def look_at_object_kernel(
    body: Body,
    lamps: Lamps,
    view: View,
    samples: Samples,
    normals: wp.array(dtype=wp.vec3),
    shots: wp.array(dtype=Shot),
    ground: wp.array(dtype=wp.vec3, ndim=3),
    count: int,
    seed: wp.uint32,
    out: wp.array(dtype=wp.vec4, ndim=3),
    spread: wp.array(dtype=float, ndim=3),
    counts: wp.array(dtype=int, ndim=3),
):
    """The object's light and how often it is met, sums over the first samples: (B, H, W).

    Args:
        ground: the ground's light, which is behind the object.
        spread: the variance of the samples, over the ground, in roots of light.
        counts: the number of samples; 0 where the object cannot be.
    """
    b, i, j = wp.tid()
    shot = shots[b]
    if not near_object(body, view, shot, i, j):
        out[b, i, j] = wp.vec4(0.0)
        spread[b, i, j] = 0.0
        counts[b, i, j] = 0
        return
    own = pixel_seed(seed, view.side, i, j, 1)
    behind = ground[b, i, j]
    total = wp.vec4(0.0)
    once = wp.vec3(0.0)
    twice = wp.vec3(0.0)
    for s in range(count):
        x = object_sample(body, lamps, view, samples, normals, shot, i, j, s, own)
        total += x
        for c in range(3):
            light = wp.clamp(x[c] + (1.0 - x[3]) * behind[c], 0.0, 1.0)
            once[c] = once[c] + wp.sqrt(light)
            twice[c] = twice[c] + light
    n = float(count)
    variance = (twice - wp.cw_mul(once, once) / n) / (n - 1.0)
    out[b, i, j] = total
    spread[b, i, j] = wp.max(wp.max(variance), 0.0)
    counts[b, i, j] = count


@wp.kernel(enable_backward=False)
def object_kernel(
    body: Body,
    lamps: Lamps,
    view: View,
    samples: Samples,
    normals: wp.array(dtype=wp.vec3),
    shots: wp.array(dtype=Shot),
    spread: wp.array(dtype=float, ndim=3),
    most: int,
    tolerance: float,
    seed: wp.uint32,
    layer: wp.array(dtype=wp.vec4, ndim=3),
    counts: wp.array(dtype=int, ndim=3),
):
    """More samples where the first ones differ; sums become means: (B, H, W).

    Args:
        most: the most samples of a pixel.
        tolerance: the error that is aimed at, in roots of light.
    """
    b, i, j = wp.tid()
    count = counts[b, i, j]
    if count == 0:
        return
    variance = float(0.0)
    for di in range(-1, 2):
        for dj in range(-1, 2):
            row = wp.clamp(i + di, 0, view.side - 1)
            column = wp.clamp(j + dj, 0, view.side - 1)
            variance = wp.max(variance, spread[b, row, column])
    # The error of n points of such a sequence falls about as n^-3/4.
    enough = wp.pow(variance / (tolerance * tolerance), 2.0 / 3.0)
    n = int(count)
    while n < most and float(n) < enough:
        n *= 2
    total = layer[b, i, j]
    if n > count:
        shot = shots[b]
        own = pixel_seed(seed, view.side, i, j, 1)
        for s in range(count, n):
            total += object_sample(body, lamps, view, samples, normals, shot, i, j, s, own)
        counts[b, i, j] = n
    layer[b, i, j] = total / float(n)


@wp.kernel(enable_backward=False)
def rows_kernel(
    first: wp.array(dtype=int),
    weights: wp.array(dtype=float, ndim=2),
    grid: wp.array(dtype=wp.vec4, ndim=3),
    out: wp.array(dtype=wp.vec4, ndim=3),
):
    """Rows of the image from rows of a grid: (B, H, n) of vec4."""
    b, i, j = wp.tid()
    total = wp.vec4(0.0)
    for k in range(weights.shape[1]):
        total += weights[i, k] * grid[b, first[i] + k, j]
    out[b, i, j] = total


@wp.kernel(enable_backward=False)
def compose_kernel(layer: wp.array(dtype=wp.vec4, ndim=3), image: wp.array(dtype=wp.vec3, ndim=3)):
    """The object over the ground, which `image` holds: (B, H, W) of vec3."""
    b, i, j = wp.tid()
    over = layer[b, i, j]
    image[b, i, j] = wp.vec3(over[0], over[1], over[2]) + (1.0 - over[3]) * image[b, i, j]


@wp.kernel(enable_backward=False)
def add_ground_kernel(
    more: wp.array(dtype=wp.vec3, ndim=3), image: wp.array(dtype=wp.vec3, ndim=3)
):
    """Add the ground's light of another spotlight: (B, H, W)."""
    b, i, j = wp.tid()
    image[b, i, j] = image[b, i, j] + more[b, i, j]


@wp.kernel(enable_backward=False)
def add_object_kernel(
    more: wp.array(dtype=wp.vec4, ndim=3),
    more_counts: wp.array(dtype=int, ndim=3),
    layer: wp.array(dtype=wp.vec4, ndim=3),
    counts: wp.array(dtype=int, ndim=3),
):
    """Add the objects' light of another spotlight; what they cover stays: (B, H, W)."""
    b, i, j = wp.tid()
    light = more[b, i, j]
    layer[b, i, j] = layer[b, i, j] + wp.vec4(light[0], light[1], light[2], 0.0)
    counts[b, i, j] = wp.max(counts[b, i, j], more_counts[b, i, j])


@wp.kernel(enable_backward=False)
def encode_kernel(linear: wp.array(dtype=wp.vec3, ndim=3), out: wp.array(dtype=wp.uint8, ndim=4)):
    """8-bit sRGB, rounded to the nearest level: (B, H, W, 3) of uint8."""
    b, i, j = wp.tid()
    for c in range(3):
        x = wp.clamp(linear[b, i, j][c], 0.0, 1.0)
        y = 12.92 * x
        if x > 0.0031308:
            y = 1.055 * wp.pow(x, 1.0 / 2.4) - 0.055
        out[b, i, j, c] = wp.uint8(int(y * 255.0 + 0.5))
