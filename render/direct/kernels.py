"""The direct engine's kernels: what runs at every pixel, on CPU and GPU, for NVIDIA Warp."""

# No `from __future__ import annotations` here: Warp reads the annotations of its functions.

import warp as wp

from threedident.render.direct import integrand

RUBBER = wp.constant(0)
METAL = wp.constant(1)
SCOUTS = wp.constant(4)  # samples that find out where the object is
FILTER_STEPS = wp.constant(1024)  # of the table of the pixel filter's quantiles
_OFFSET = wp.constant(1.0e-3)  # m, by which shadow rays start off the surface


@wp.struct
class Shot:
    """A scene, as kernels need it."""

    location: wp.vec3
    rotation: wp.mat33
    scale: float
    ground: float
    spot: wp.vec3
    object_color: wp.vec3
    spot_color: wp.vec3
    ground_color: wp.vec3
    effort: int  # how many times more samples the object gets


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
class Body:
    """The object: its mesh, what is needed for its normals, and its material."""

    mesh: wp.uint64
    material: int
    centre: wp.vec3  # of the bounding box, and its sides: for the metal's tangents
    sides: wp.vec3


@wp.func
def filter_offset(table: wp.array(dtype=float), u: float) -> float:
    """An offset in pixels, distributed as the pixel filter, from a uniform number."""
    x = u * float(FILTER_STEPS)
    i = wp.min(int(x), FILTER_STEPS - 1)
    t = x - float(i)
    return (1.0 - t) * table[i] + t * table[i + 1]


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
    return (wp.transpose(shot.rotation) * (p - shot.location)) / shot.scale


@wp.func
def blocked(body: Body, shot: Shot, p: wp.vec3, towards: wp.vec3, reach: float) -> bool:
    """Whether the object stands within `reach` (in lengths of `towards`) of a point."""
    direction = (wp.transpose(shot.rotation) * towards) / shot.scale
    return wp.mesh_query_ray_anyhit(body.mesh, to_object(shot, p), direction, reach)


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
def spot_strength(lamps: Lamps, shot: Shot, way: wp.vec3) -> float:
    """The light's irradiance, on a surface that faces it, at the end of a way to it."""
    squared = wp.dot(way, way)
    aim = wp.normalize(shot.location - shot.spot)
    cosine = -wp.dot(way, aim) / wp.sqrt(squared)
    falloff = integrand.spot_falloff(cosine, lamps.spot_cos, lamps.spot_blend)
    return lamps.spot / (4.0 * integrand.PI) / squared * falloff


@wp.struct
class Point:
    """A point of a surface, seen by the camera."""

    p: wp.vec3
    n: wp.vec3  # shading normal
    face: wp.vec3  # geometric normal
    v: wp.vec3  # to the camera
    tangent: wp.vec3
    color: wp.vec3
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
        return integrand.rubber(point.n, point.v, l, point.color)
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
def lit(body: Body, lamps: Lamps, shot: Shot, point: Point, index: int, seed: wp.uint32) -> wp.vec3:
    """One sample of the light that a point sends to the camera: each light once."""
    start = shadow_start(point)
    total = wp.vec3(0.0)

    way = sun_light(lamps, integrand.sample_point(index, 1, seed))
    l = wp.normalize(way)
    f = scatter(point, l)
    if wp.max(f) > 0.0 and not blocked(body, shot, start, l, 1.0e4):
        total += lamps.sun * share(point, l, sun_pdf(lamps, l)) * f

    way = area_light(lamps, point.p, integrand.sample_point(index, 2, seed))
    l = wp.normalize(way)
    f = scatter(point, l)
    strength = area_strength(lamps, way)
    if strength * wp.max(f) > 0.0 and not blocked(body, shot, start, way, 1.0):
        total += strength * share(point, l, area_pdf(lamps, point.p, l)) * f

    way = spot_light(lamps, shot, point.p, integrand.sample_point(index, 3, seed))
    l = wp.normalize(way)
    f = wp.cw_mul(shot.spot_color, scatter(point, l))
    strength = spot_strength(lamps, shot, way)
    if strength * wp.max(f) > 0.0 and not blocked(body, shot, start, way, 1.0):
        total += strength * share(point, l, spot_pdf(lamps, shot, point.p, l)) * f

    if point.material != RUBBER:
        total += reflected(body, lamps, shot, point, integrand.sample_point(index, 4, seed))
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
def sample_ray(
    view: View, table: wp.array(dtype=float), i: int, j: int, index: int, seed: wp.uint32
) -> wp.vec3:
    """The camera ray of a pixel's sample."""
    u = integrand.sample_point(index, 0, seed)
    row = float(i) + 0.5 + view.width * filter_offset(table, u[1])
    column = float(j) + 0.5 + view.width * filter_offset(table, u[0])
    return camera_ray(view, row, column)


@wp.kernel(enable_backward=False)
def ground_kernel(
    body: Body,
    lamps: Lamps,
    view: View,
    table: wp.array(dtype=float),
    shots: wp.array(dtype=Shot),
    samples: int,
    seed: wp.uint32,
    out: wp.array(dtype=wp.vec3, ndim=3),
):
    """The ground on its grid, as if the object could not be seen: (B, n, n) of vec3."""
    b, i, j = wp.tid()
    shot = shots[b]
    own = pixel_seed(seed, view.side, i, j, 0)
    eye = wp.vec3(view.camera, 0.0, view.camera)
    total = wp.vec3(0.0)
    for s in range(samples):
        d = sample_ray(view, table, i, j, s, own)
        if d[2] < -1.0e-4:
            point = Point()
            point.p = eye + d * ((shot.ground - view.camera) / d[2])
            point.p = wp.vec3(point.p[0], point.p[1], shot.ground)
            point.n = wp.vec3(0.0, 0.0, 1.0)
            point.face = point.n
            point.v = -wp.normalize(d)
            point.color = shot.ground_color
            point.material = RUBBER
            total += lit(body, lamps, shot, point, s, own)
    out[b, i, j] = total / float(samples)


@wp.func
def first_hit(body: Body, shot: Shot, eye: wp.vec3, d: wp.vec3) -> wp.MeshQueryRay:
    """The point at which a camera ray meets the object, above the ground."""
    reach = float(1.0e4)
    if d[2] < -1.0e-4:
        reach = (shot.ground - eye[2]) / d[2]
    direction = (wp.transpose(shot.rotation) * d) / shot.scale
    return wp.mesh_query_ray(body.mesh, to_object(shot, eye), direction, reach)


@wp.kernel(enable_backward=False)
def scout_kernel(
    body: Body,
    view: View,
    table: wp.array(dtype=float),
    shots: wp.array(dtype=Shot),
    seed: wp.uint32,
    out: wp.array(dtype=wp.int8, ndim=3),
):
    """The number of the first samples of a pixel that meet the object: (B, H, W) of int8."""
    b, i, j = wp.tid()
    shot = shots[b]
    own = pixel_seed(seed, view.side, i, j, 1)
    eye = wp.vec3(view.camera, 0.0, view.camera)
    hits = 0
    for s in range(SCOUTS):
        d = sample_ray(view, table, i, j, s, own)
        if first_hit(body, shot, eye, d).result:
            hits += 1
    out[b, i, j] = wp.int8(hits)


@wp.kernel(enable_backward=False)
def object_kernel(
    body: Body,
    lamps: Lamps,
    view: View,
    table: wp.array(dtype=float),
    normals: wp.array(dtype=wp.vec3),
    shots: wp.array(dtype=Shot),
    scouted: wp.array(dtype=wp.int8, ndim=3),
    inside: int,
    edge: int,
    seed: wp.uint32,
    out: wp.array(dtype=wp.vec4, ndim=3),
):
    """The object: light and covered share of every pixel, (B, H, W) of vec4."""
    b, i, j = wp.tid()
    most = 0
    least = int(SCOUTS)
    for di in range(-1, 2):
        for dj in range(-1, 2):
            row = wp.clamp(i + di, 0, view.side - 1)
            column = wp.clamp(j + dj, 0, view.side - 1)
            hits = int(scouted[b, row, column])
            most = wp.max(most, hits)
            least = wp.min(least, hits)
    if most == 0:
        out[b, i, j] = wp.vec4(0.0)
        return
    samples = inside
    if least < SCOUTS:
        samples = edge
    shot = shots[b]
    samples *= shot.effort
    own = pixel_seed(seed, view.side, i, j, 1)
    eye = wp.vec3(view.camera, 0.0, view.camera)
    total = wp.vec3(0.0)
    covered = float(0.0)
    for s in range(samples):
        d = sample_ray(view, table, i, j, s, own)
        hit = first_hit(body, shot, eye, d)
        if hit.result:
            covered += 1.0
            point = Point()
            point.p = eye + d * hit.t
            point.v = -wp.normalize(d)
            k = hit.face * 3
            n = hit.u * normals[k] + hit.v * normals[k + 1] + (1.0 - hit.u - hit.v) * normals[k + 2]
            point.n = wp.normalize(shot.rotation * n)
            point.face = wp.normalize(shot.rotation * hit.normal)
            if wp.dot(point.face, point.v) < 0.0:
                point.face = -point.face
                point.n = -point.n
            local = to_object(shot, point.p) - body.centre
            point.tangent = shot.rotation * wp.vec3(
                -local[1] / body.sides[1], local[0] / body.sides[0], 0.0
            )
            point.color = shot.object_color
            point.material = body.material
            total += lit(body, lamps, shot, point, s, own)
    scale = 1.0 / float(samples)
    out[b, i, j] = wp.vec4(total[0] * scale, total[1] * scale, total[2] * scale, covered * scale)


@wp.kernel(enable_backward=False)
def rows_kernel(
    first: wp.array(dtype=int),
    weights: wp.array(dtype=float, ndim=2),
    grid: wp.array(dtype=wp.vec3, ndim=3),
    out: wp.array(dtype=wp.vec3, ndim=3),
):
    """Rows of the image from rows of the ground's grid: (B, H, n) of vec3."""
    b, i, j = wp.tid()
    total = wp.vec3(0.0)
    for k in range(weights.shape[1]):
        total += weights[i, k] * grid[b, first[i] + k, j]
    out[b, i, j] = total


@wp.kernel(enable_backward=False)
def compose_kernel(
    first: wp.array(dtype=int),
    weights: wp.array(dtype=float, ndim=2),
    rows: wp.array(dtype=wp.vec3, ndim=3),
    layer: wp.array(dtype=wp.vec4, ndim=3),
    out: wp.array(dtype=wp.vec3, ndim=3),
):
    """The object over the ground, whose columns are brought up here: (B, H, W) of vec3."""
    b, i, j = wp.tid()
    ground = wp.vec3(0.0)
    for k in range(weights.shape[1]):
        ground += weights[j, k] * rows[b, i, first[j] + k]
    over = layer[b, i, j]
    out[b, i, j] = wp.vec3(over[0], over[1], over[2]) + (1.0 - over[3]) * ground


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
