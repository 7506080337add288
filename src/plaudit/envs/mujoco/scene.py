"""The scene around the robot: table, light, cameras, one free object, and one movable piece of scenery."""

from __future__ import annotations

from typing import Literal

import mujoco

from plaudit.envs.mujoco import panda

TIMESTEP = 0.00625
SUBSTEPS = 8
"""Physics steps in one control step of 50 ms (20 Hz). Longer ones than 6.7 ms lose grasps."""

CONTROL_HZ = 1 / (TIMESTEP * SUBSTEPS)

IN_FRONT = 'pos=".7 0 .55" xyaxes="0 1 0 -.569 0 .822" fovy="44"'
"""The base camera in front of the robot, looking back at it and 35 degrees down: heights show."""


def build(
    task: str,
    thing: str,
    scenery: str,
    base_camera: str = IN_FRONT,
    damping: float = 0.0,
    cone: Literal["elliptic", "pyramidal"] = "elliptic",
) -> mujoco.MjModel:
    """Compiles the robot with one task's objects.

    Args:
        task: Name of the model.
        thing: MJCF of the geoms of the free body that the robot handles.
        scenery: MJCF of the geoms of the mocap body: a goal, or a block with a hole.
        base_camera: MJCF attributes of the camera that stands.
        damping: Of the free body, in N s/m and N m s. A long one that spins fast gains energy without it, as the
            integrator leaves gyroscopic forces out of its derivatives, until MuJoCo gives up and resets the state.
        cone: Friction cones. Elliptic ones hold a cube that is shaken; pyramidal ones are twice as fast where a thing
            is jammed, and are enough for a peg that is only carried slowly.
    """
    return mujoco.MjModel.from_xml_string(f"""
<mujoco model="{task}">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP}" integrator="implicitfast" cone="{cone}" impratio="{4 if cone == "elliptic" else 1}"
          iterations="30" tolerance="1e-7">
    <flag eulerdamp="disable"/>
  </option>
  <size memory="2M"/>
  <visual>
    <quality offsamples="0"/>
    <headlight ambient=".45 .45 .45" diffuse=".45 .45 .45" specular="0 0 0"/>
    <map znear=".02" zfar="20"/>
    <global offwidth="1280" offheight="960"/>
  </visual>
  {panda.DEFAULTS}
  <asset><texture type="skybox" builtin="gradient" rgb1=".92 .94 .97" rgb2=".62 .7 .8" width="64" height="384"/></asset>
  <worldbody>
    <light pos=".3 -.4 2" dir="-.2 .25 -1" directional="true" diffuse=".4 .4 .4" specular="0 0 0" castshadow="true"/>
    <geom name="table" type="plane" size="8 8 8" rgba=".76 .68 .57 1" friction=".5" contype="1" conaffinity="3"/>
    <camera name="base_camera" {base_camera}/>
    <camera name="show" pos=".9 -1.3 .9" xyaxes=".749 .662 0 -.232 .263 .938" fovy="32"/>
    {panda.body()}
    <body name="thing" pos="0 0 .02">
      <joint type="free" armature="0" damping="{damping}"/>{thing}
    </body>
    <body name="scenery" mocap="true" pos="0 0 0">{scenery}</body>
  </worldbody>
  <equality><joint joint1="finger1" joint2="finger2" solref=".005 1" solimp=".95 .99 .001"/></equality>
  <actuator>{panda.actuators()}</actuator>
</mujoco>""")
