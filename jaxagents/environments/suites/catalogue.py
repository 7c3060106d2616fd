"""The ids of suites that are installed as extras. Does not import jax."""

from typing import NamedTuple


class Suite(NamedTuple):
    """A library of environments, which an extra of the suite's name installs."""

    package: str  # that is imported
    listing: str  # of the library's own ids, separated by spaces

    @property
    def names(self) -> list[str]:
        """The library's own ids."""
        return self.listing.split()


_MATRIX_GAMES = (
    *(f"Penalty-{penalty}" for penalty in (0, 25, 50, 75, 100)),
    "Climbing",
    *(f"NoConflict-{number}" for number in range(21)),
    *(f"Conflict-{number}" for number in range(57)),
)
SUITES = {
    "jumanji": Suite(
        "jumanji",
        """
        BinPack-v2 Cleaner-v0 Connector-v3 CVRP-v1 FlatPack-v0 Game2048-v1
        GraphColoring-v1 JobShop-v0 Knapsack-v1 LevelBasedForaging-v0 Maze-v0
        Minesweeper-v0 MMST-v0 MultiCVRP-v0 PacMan-v1 RobotWarehouse-v0
        RubiksCube-partly-scrambled-v0 RubiksCube-v0 SearchAndRescue-v0
        SlidingTilePuzzle-v0 Snake-v1 Sokoban-v0 Sudoku-v0 Sudoku-very-easy-v0 Tetris-v0
        TSP-v1
        """,
    ),
    "matrax": Suite(
        "matrax",
        " ".join(f"{game}-stateless-v0 {game}-stateful-v0" for game in _MATRIX_GAMES),
    ),
    "brax": Suite(
        "brax",
        """
        ant halfcheetah hopper humanoid humanoidstandup inverted_pendulum
        inverted_double_pendulum pusher reacher walker2d
        """,
    ),
    "playground": Suite(
        "mujoco_playground",
        """
        AcrobotSwingup AcrobotSwingupSparse BallInCup CartpoleBalance
        CartpoleBalanceSparse CartpoleSwingup CartpoleSwingupSparse CheetahRun
        FingerSpin FingerTurnEasy FingerTurnHard FishSwim HopperHop HopperStand
        HumanoidStand HumanoidWalk HumanoidRun PendulumSwingup PointMass ReacherEasy
        ReacherHard SwimmerSwimmer6 WalkerRun WalkerStand WalkerWalk
        ApolloJoystickFlatTerrain BarkourJoystick BerkeleyHumanoidJoystickFlatTerrain
        BerkeleyHumanoidJoystickRoughTerrain G1JoystickFlatTerrain
        G1JoystickRoughTerrain Go1JoystickFlatTerrain Go1JoystickRoughTerrain Go1Getup
        Go1Handstand Go1Footstand H1InplaceGaitTracking H1JoystickGaitTracking
        Op3Joystick SpotFlatTerrainJoystick SpotGetup SpotJoystickGaitTracking
        T1JoystickFlatTerrain T1JoystickRoughTerrain AlohaHandOver
        AlohaSinglePegInsertion PandaPickCube PandaPickCubeOrientation
        PandaPickCubeCartesian PandaOpenCabinet PandaRobotiqPushCube LeapCubeReorient
        LeapCubeRotateZAxis AeroCubeRotateZAxis
        """,
    ),
    "craftax": Suite(
        "craftax",
        """
        Craftax-Symbolic-v1 Craftax-Pixels-v1 Craftax-Classic-Symbolic-v1
        Craftax-Classic-Pixels-v1
        """,
    ),
    "pgx": Suite(
        "pgx",
        """
        2048 animal_shogi backgammon chess connect_four gardner_chess go_9x9 go_19x19
        hex kuhn_poker leduc_holdem minatar-asterix minatar-breakout minatar-freeway
        minatar-seaquest minatar-space_invaders othello shogi sparrow_mahjong
        tic_tac_toe
        """,
    ),
    "navix": Suite(
        "navix",
        """
        Navix-Empty-5x5-v0 Navix-Empty-6x6-v0 Navix-Empty-8x8-v0 Navix-Empty-16x16-v0
        Navix-Empty-Random-5x5-v0 Navix-Empty-Random-6x6-v0 Navix-Empty-Random-8x8-v0
        Navix-Empty-Random-16x16-v0 Navix-DoorKey-5x5-v0 Navix-DoorKey-6x6-v0
        Navix-DoorKey-8x8-v0 Navix-DoorKey-16x16-v0 Navix-DoorKey-Random-5x5-v0
        Navix-DoorKey-Random-6x6-v0 Navix-DoorKey-Random-8x8-v0
        Navix-DoorKey-Random-16x16-v0 Navix-FourRooms-v0 Navix-KeyCorridorS3R1-v0
        Navix-KeyCorridorS3R2-v0 Navix-KeyCorridorS3R3-v0 Navix-KeyCorridorS4R3-v0
        Navix-KeyCorridorS5R3-v0 Navix-KeyCorridorS6R3-v0 Navix-LavaGapS5-v0
        Navix-LavaGapS6-v0 Navix-LavaGapS7-v0 Navix-SimpleCrossingS9N1-v0
        Navix-SimpleCrossingS9N2-v0 Navix-SimpleCrossingS9N3-v0
        Navix-SimpleCrossingS11N5-v0 Navix-Dynamic-Obstacles-5x5-v0
        Navix-Dynamic-Obstacles-5x5-Random-v0 Navix-Dynamic-Obstacles-6x6-v0
        Navix-Dynamic-Obstacles-6x6-Random-v0 Navix-Dynamic-Obstacles-8x8-v0
        Navix-Dynamic-Obstacles-16x16-v0 Navix-DistShift1-v0 Navix-DistShift2-v0
        Navix-GoToDoor-5x5-v0 Navix-GoToDoor-6x6-v0 Navix-GoToDoor-8x8-v0
        """,
    ),
    "xminigrid": Suite(
        "xminigrid",
        """
        XLand-MiniGrid-R1-9x9 XLand-MiniGrid-R1-11x11 XLand-MiniGrid-R1-13x13
        XLand-MiniGrid-R1-15x15 XLand-MiniGrid-R1-17x17 XLand-MiniGrid-R2-9x9
        XLand-MiniGrid-R2-11x11 XLand-MiniGrid-R2-13x13 XLand-MiniGrid-R2-15x15
        XLand-MiniGrid-R2-17x17 XLand-MiniGrid-R4-9x9 XLand-MiniGrid-R4-11x11
        XLand-MiniGrid-R4-13x13 XLand-MiniGrid-R4-15x15 XLand-MiniGrid-R4-17x17
        XLand-MiniGrid-R6-13x13 XLand-MiniGrid-R6-17x17 XLand-MiniGrid-R6-19x19
        XLand-MiniGrid-R9-16x16 XLand-MiniGrid-R9-19x19 XLand-MiniGrid-R9-25x25
        MiniGrid-BlockedUnlockPickUp MiniGrid-DoorKey-5x5 MiniGrid-DoorKey-6x6
        MiniGrid-DoorKey-8x8 MiniGrid-DoorKey-16x16 MiniGrid-Empty-5x5
        MiniGrid-Empty-6x6 MiniGrid-Empty-8x8 MiniGrid-Empty-16x16
        MiniGrid-EmptyRandom-5x5 MiniGrid-EmptyRandom-6x6 MiniGrid-EmptyRandom-8x8
        MiniGrid-EmptyRandom-16x16 MiniGrid-FourRooms MiniGrid-LockedRoom
        MiniGrid-MemoryS8 MiniGrid-MemoryS16 MiniGrid-MemoryS32 MiniGrid-MemoryS64
        MiniGrid-MemoryS128 MiniGrid-Playground MiniGrid-Unlock MiniGrid-UnlockPickUp
        """,
    ),
}
